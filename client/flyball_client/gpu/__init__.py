"""GPUs behind one contract (`_base.GpuDevice`): a file for each way to reach one."""
