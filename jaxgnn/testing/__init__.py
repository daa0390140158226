"""Tools for tests and benchmarks: workloads, tolerances, gradient checks and timing."""

from jaxgnn.testing.cases import DIMS as DIMS
from jaxgnn.testing.cases import DTYPES as DTYPES
from jaxgnn.testing.cases import GRAPHS as GRAPHS
from jaxgnn.testing.cases import MAXK_SHAPES as MAXK_SHAPES
from jaxgnn.testing.cases import GraphCase as GraphCase
from jaxgnn.testing.numerics import assert_bit_equal as assert_bit_equal
from jaxgnn.testing.numerics import assert_close as assert_close
from jaxgnn.testing.numerics import check_against_float64 as check_against_float64
from jaxgnn.testing.numerics import check_forward_mode as check_forward_mode
from jaxgnn.testing.numerics import check_numerical_gradients as check_numerical_gradients
from jaxgnn.testing.numerics import random_array as random_array
from jaxgnn.testing.numerics import to_float64 as to_float64
from jaxgnn.testing.numerics import tolerances as tolerances
from jaxgnn.testing.programs import program_fingerprint as program_fingerprint
from jaxgnn.testing.programs import same_program as same_program
