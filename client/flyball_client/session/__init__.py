"""Session of a training rank: active plan, step measuring, posting."""
