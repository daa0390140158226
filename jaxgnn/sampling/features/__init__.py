"""Stores of node features: in memory, in files, on the device, or on both."""

from jaxgnn.sampling.features._cached import CachedFeatures as CachedFeatures
from jaxgnn.sampling.features._device import DeviceFeatures as DeviceFeatures
from jaxgnn.sampling.features._files import FileFeatures as FileFeatures
from jaxgnn.sampling.features._host import HostFeatures as HostFeatures
from jaxgnn.sampling.features._int8 import Int8Features as Int8Features
from jaxgnn.sampling.features._store import FeatureStore as FeatureStore
from jaxgnn.sampling.features._store import as_store as as_store
