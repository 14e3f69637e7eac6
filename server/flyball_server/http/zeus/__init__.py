"""Zeus's protocol: the calls of an unmodified `PipelineFrequencyOptimizer`."""
