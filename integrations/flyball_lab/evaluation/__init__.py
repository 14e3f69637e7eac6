"""`flyball evaluate`: EnvPipe's evaluation, with Flyball's plans added, on emulated GPUs."""
