"""Matrices: two axes swapped, products with vectors, and those of sparse matrices."""

from numbasync_kernels.matrix.sparse import csr_matmul as csr_matmul
from numbasync_kernels.matrix.sparse import csr_matmul_reference as csr_matmul_reference
from numbasync_kernels.matrix.sparse import csr_matvec as csr_matvec
from numbasync_kernels.matrix.sparse import csr_matvec_reference as csr_matvec_reference
from numbasync_kernels.matrix.transpose import transpose as transpose
from numbasync_kernels.matrix.transpose import transpose_reference as transpose_reference
from numbasync_kernels.matrix.vector import matvec as matvec
from numbasync_kernels.matrix.vector import matvec_reference as matvec_reference
