"""Parts of a transformer: embedding, products, GELU, attention, normalisation, pooling.

All take float16, bfloat16 and float32 (`gelu` float32) and compute in float32. Features are the
last axis and lie on CUDA's x axis, so that neighbouring threads touch neighbouring elements. No
kernel allocates: outputs are the caller's, so a launch of whole tensors can be recorded and
replayed.
"""

from numbasync_kernels.nn.attention import MAX_KEYS as MAX_KEYS
from numbasync_kernels.nn.attention import MAX_WIDTH as MAX_WIDTH
from numbasync_kernels.nn.attention import attention as attention
from numbasync_kernels.nn.attention import attention_reference as attention_reference
from numbasync_kernels.nn.attention import attention_tile as attention_tile
from numbasync_kernels.nn.attention_decode import paged_attention as paged_attention
from numbasync_kernels.nn.attention_decode import (
    paged_attention_reference as paged_attention_reference,
)
from numbasync_kernels.nn.dot_product_attention import (
    dot_product_attention as dot_product_attention,
)
from numbasync_kernels.nn.dot_product_attention import (
    dot_product_attention_reference as dot_product_attention_reference,
)
from numbasync_kernels.nn.embedding import EMBEDDING_TILE as EMBEDDING_TILE
from numbasync_kernels.nn.embedding import embedding as embedding
from numbasync_kernels.nn.embedding import embedding_reference as embedding_reference
from numbasync_kernels.nn.gelu import GELU_THREADS as GELU_THREADS
from numbasync_kernels.nn.gelu import gelu as gelu
from numbasync_kernels.nn.gelu import gelu_reference as gelu_reference
from numbasync_kernels.nn.gemm import gemm as gemm
from numbasync_kernels.nn.gemm import gemm_reference as gemm_reference
from numbasync_kernels.nn.layer_norm import NORM_ROWS as NORM_ROWS
from numbasync_kernels.nn.layer_norm import add_layer_norm as add_layer_norm
from numbasync_kernels.nn.layer_norm import add_layer_norm_reference as add_layer_norm_reference
from numbasync_kernels.nn.layer_norm import layer_norm as layer_norm
from numbasync_kernels.nn.layer_norm import layer_norm_reference as layer_norm_reference
from numbasync_kernels.nn.pooling import POOL_TILE as POOL_TILE
from numbasync_kernels.nn.pooling import UNIT_ROWS as UNIT_ROWS
from numbasync_kernels.nn.pooling import mean_pool as mean_pool
from numbasync_kernels.nn.pooling import mean_pool_reference as mean_pool_reference
from numbasync_kernels.nn.pooling import unit_rows as unit_rows
from numbasync_kernels.nn.pooling import unit_rows_reference as unit_rows_reference
from numbasync_kernels.nn.several_products import batched_gemm as batched_gemm
from numbasync_kernels.nn.several_products import grouped_gemm as grouped_gemm
