"""What the broker knows besides records: streams and their partitions.

Pure: an immutable image and commands that turn one image into the next. Who makes a command
durable, and when, is the broker's business.
"""
