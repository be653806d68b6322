"""Transactions on a broker: what partitions keep of them, and the office of the coordinator.

The decisions are ``strandline.transactions``'; here are the logs, the turns and the wires.
"""
