"""The Mandelbrot set: complex numbers, a device function of the same Python code as the host's."""

import numpy as np
from numba import cuda, jit


def mandel(x, y, max_iters):
    c = complex(x, y)
    z = 0.0j
    for i in range(max_iters):
        z = z * z + c
        if (z.real * z.real + z.imag * z.imag) >= 4:
            return i
    return max_iters


mandel_gpu = cuda.jit(device=True)(mandel)
mandel_cpu = jit(nopython=True)(mandel)


@cuda.jit
def mandel_kernel(min_x, max_x, min_y, max_y, image, iters):
    height, width = image.shape
    pixel_size_x = (max_x - min_x) / width
    pixel_size_y = (max_y - min_y) / height
    start_x, start_y = cuda.grid(2)
    grid_x = cuda.gridDim.x * cuda.blockDim.x
    grid_y = cuda.gridDim.y * cuda.blockDim.y
    for x in range(start_x, width, grid_x):
        real = min_x + x * pixel_size_x
        for y in range(start_y, height, grid_y):
            image[y, x] = mandel_gpu(real, min_y + y * pixel_size_y, iters)


image = np.zeros((48, 72), dtype=np.uint8)
d_image = cuda.to_device(image)
mandel_kernel[(4, 4), (8, 4)](-2.0, 1.0, -1.0, 1.0, d_image, 20)
d_image.copy_to_host(image)
expected = [
    [mandel(-2 + x * (3 / 72), -1 + y * (2 / 48), 20) for x in range(72)] for y in range(48)
]
np.testing.assert_array_equal(image, expected)
