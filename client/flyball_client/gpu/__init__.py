"""GPUs behind one contract (`_base.GpuDevice`): a folder for each vendor or way to reach one."""
