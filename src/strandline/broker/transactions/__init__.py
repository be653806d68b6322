"""Transactions on a broker: what partitions keep of them, and the office of the coordinator.

The decisions are ``strandline.core.transactions``'; here are the logs, the turns and the wires.
"""
