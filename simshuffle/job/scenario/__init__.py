"""A scenario names a cluster and a workload."""
