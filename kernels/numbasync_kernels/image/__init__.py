"""Pictures: of another size, shape or colour, blurred; edges, extremes, medians; levels equalised.

Every kernel takes rows on CUDA's y axis and columns on x, so that neighbouring threads
touch neighbouring pixels.
"""

from numbasync_kernels.image.blur import RADIUS as RADIUS
from numbasync_kernels.image.blur import gaussian_blur as gaussian_blur
from numbasync_kernels.image.blur import gaussian_blur_reference as gaussian_blur_reference
from numbasync_kernels.image.blur import gaussian_weights as gaussian_weights
from numbasync_kernels.image.clahe import clahe as clahe
from numbasync_kernels.image.clahe import clahe_reference as clahe_reference
from numbasync_kernels.image.clahe import clahe_tables as clahe_tables
from numbasync_kernels.image.clahe import clahe_tables_reference as clahe_tables_reference
from numbasync_kernels.image.colour import hsv_to_rgb as hsv_to_rgb
from numbasync_kernels.image.colour import hsv_to_rgb_reference as hsv_to_rgb_reference
from numbasync_kernels.image.colour import lab_to_rgb as lab_to_rgb
from numbasync_kernels.image.colour import lab_to_rgb_reference as lab_to_rgb_reference
from numbasync_kernels.image.colour import rgb_to_hsv as rgb_to_hsv
from numbasync_kernels.image.colour import rgb_to_hsv_reference as rgb_to_hsv_reference
from numbasync_kernels.image.colour import rgb_to_lab as rgb_to_lab
from numbasync_kernels.image.colour import rgb_to_lab_reference as rgb_to_lab_reference
from numbasync_kernels.image.colour import rgb_to_ycbcr as rgb_to_ycbcr
from numbasync_kernels.image.colour import rgb_to_ycbcr_reference as rgb_to_ycbcr_reference
from numbasync_kernels.image.colour import ycbcr_to_rgb as ycbcr_to_rgb
from numbasync_kernels.image.colour import ycbcr_to_rgb_reference as ycbcr_to_rgb_reference
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
from numbasync_kernels.image.normalise import normalise as normalise
from numbasync_kernels.image.normalise import normalise_reference as normalise_reference
from numbasync_kernels.image.remap import CONSTANT as CONSTANT
from numbasync_kernels.image.remap import NEAREST as NEAREST
from numbasync_kernels.image.remap import REFLECT as REFLECT
from numbasync_kernels.image.remap import WRAP as WRAP
from numbasync_kernels.image.remap import remap as remap
from numbasync_kernels.image.remap import remap_reference as remap_reference
from numbasync_kernels.image.resize import resize_area as resize_area
from numbasync_kernels.image.resize import resize_area_reference as resize_area_reference
from numbasync_kernels.image.resize import resize_bicubic as resize_bicubic
from numbasync_kernels.image.resize import resize_bicubic_reference as resize_bicubic_reference
from numbasync_kernels.image.resize import resize_bilinear as resize_bilinear
from numbasync_kernels.image.resize import resize_bilinear_reference as resize_bilinear_reference
from numbasync_kernels.image.resize import resize_nearest as resize_nearest
from numbasync_kernels.image.resize import resize_nearest_reference as resize_nearest_reference
from numbasync_kernels.image.sobel import sobel as sobel
from numbasync_kernels.image.sobel import sobel_reference as sobel_reference
from numbasync_kernels.image.windows import box_blur as box_blur
from numbasync_kernels.image.windows import box_blur_reference as box_blur_reference
from numbasync_kernels.image.windows import dilate as dilate
from numbasync_kernels.image.windows import dilate_reference as dilate_reference
from numbasync_kernels.image.windows import erode as erode
from numbasync_kernels.image.windows import erode_reference as erode_reference
from numbasync_kernels.image.windows import median as median
from numbasync_kernels.image.windows import median_reference as median_reference
