"""Names of the headers that pipelines add to records: the source, and the reason of a failure.

Rule: a derived record carries the three source headers. By them a copy finds its position and
readers recognize duplicates; ``clean`` removes them.
"""

SOURCE_STREAM = "Strandline-Source-Stream"
SOURCE_PARTITION = "Strandline-Source-Partition"
SOURCE_OFFSET = "Strandline-Source-Offset"
SOURCE_HEADERS = (SOURCE_STREAM, SOURCE_PARTITION, SOURCE_OFFSET)

ERROR = "Strandline-Error"
"""The header of a dead letter with the reason why its value was rejected."""
