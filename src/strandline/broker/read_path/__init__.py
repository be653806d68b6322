"""The read path: the part of a partition that readers may see."""
