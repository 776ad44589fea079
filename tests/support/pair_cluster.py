"""The cluster file of two slow devices on a fast link: even tiny steps are split."""

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
