"""XLA custom calls: the compiled libraries and typed wrappers around their targets."""

from jaxgnn._ffi._kernel_cache import cache_summary as cache_summary
from jaxgnn._ffi._library import library_path as library_path
from jaxgnn._ffi._library import load as load
from jaxgnn._ffi._library import open_library as open_library
from jaxgnn._ffi._library import targets as targets
from jaxgnn._ffi._library import why_missing as why_missing
from jaxgnn._ffi._library import why_not_open as why_not_open
from jaxgnn._ffi._nvrtc import nvrtc_path as nvrtc_path
