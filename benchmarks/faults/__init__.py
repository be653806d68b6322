"""Faults done to Strandline and to its peers under the same load, and a judge of what is left."""
