"""Tensor products whose generated sources are tested."""

from jaxgnn.equivariant import TensorProduct, separate_paths

PRODUCTS = {
    # Several paths to an entry of the result, from several entries; one entry that none reads.
    "sums": TensorProduct.of(
        "3x0e+33x1o+3x2e+7x0o",
        "0e+1o+2e+3o",
        "3x0e+33x1o+3x2e",
        [(0, 0, 0), (1, 0, 1), (1, 2, 1), (2, 0, 2), (2, 2, 2), (0, 2, 2), (2, 2, 0)],
    ),
    "apart": separate_paths("40x0e+1x1o+7x2e+7x3o", "0e+1o+2e+3o", keep="0e+1o+2e+3o"),
    "scalars": TensorProduct.of("1x0e", "0e", "1x0e"),
    # More numbers than a lane keeps at once: several passes, and several kernels of an entry.
    "wide": separate_paths("2x3o+2x4e", "0e+1o+2e+3o+4e", keep="0e+1o+2e+3o+4e+1e+2o+3e+4o"),
    "two of a degree": TensorProduct.of("5x1o", "1o+0e+1o", "5x0e+5x1o+5x2e"),
}
