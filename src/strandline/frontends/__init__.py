"""The broker's listeners: siblings that know the broker and not each other."""
