//! Supervises a family of machines: registry, layers, quotas, fork
