"""Stores of node features: in memory, in files, on the device, or on both."""

from jaxgnn.sampling.features.stores import DeviceFeatures as DeviceFeatures
from jaxgnn.sampling.features.stores import FeatureStore as FeatureStore
from jaxgnn.sampling.features.stores import FileFeatures as FileFeatures
from jaxgnn.sampling.features.stores import HostFeatures as HostFeatures
from jaxgnn.sampling.features.stores import as_store as as_store
from jaxgnn.sampling.features.wrappers import CachedFeatures as CachedFeatures
from jaxgnn.sampling.features.wrappers import Int8Features as Int8Features
