"""Settings for every test."""

import jax

# Four devices, so that shard_map has something to shard over; only before JAX starts.
jax.config.update("jax_num_cpu_devices", 4)
# A GPU would multiply float32 matrices in TF32.
jax.config.update("jax_default_matmul_precision", "highest")
jax.config.update("jax_numpy_dtype_promotion", "strict")
