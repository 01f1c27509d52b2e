"""Pictures: to grey, blur, find edges, count levels, equalise.

Every kernel takes rows on CUDA's y axis and columns on x, so that neighbouring threads
touch neighbouring pixels.
"""

from numbasync_kernels.image.blur import RADIUS as RADIUS
from numbasync_kernels.image.blur import gaussian_blur as gaussian_blur
from numbasync_kernels.image.blur import gaussian_blur_reference as gaussian_blur_reference
from numbasync_kernels.image.blur import gaussian_weights as gaussian_weights
from numbasync_kernels.image.equalise import equalisation_table as equalisation_table
from numbasync_kernels.image.equalise import (
    equalisation_table_reference as equalisation_table_reference,
)
from numbasync_kernels.image.equalise import look_up as look_up
from numbasync_kernels.image.equalise import look_up_reference as look_up_reference
from numbasync_kernels.image.grey import grey as grey
from numbasync_kernels.image.grey import grey_reference as grey_reference
from numbasync_kernels.image.histogram import histogram as histogram
from numbasync_kernels.image.histogram import histogram_grid as histogram_grid
from numbasync_kernels.image.histogram import histogram_reference as histogram_reference
from numbasync_kernels.image.sobel import sobel as sobel
from numbasync_kernels.image.sobel import sobel_reference as sobel_reference
