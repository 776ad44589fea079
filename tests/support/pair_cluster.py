"""A slow pair of devices on a fast link, as a cluster file: even tiny steps are split."""

PAIR_CLUSTER = """
version = 1
name = "pair"
mesh = ["gpu=2"]
[device.cpu]
flops = { float32 = 1e8 }
memory_bandwidth = 1e8
memory = "1GB"
[link.gpu]
latency = 1e-7
bandwidth = 1e8
"""
