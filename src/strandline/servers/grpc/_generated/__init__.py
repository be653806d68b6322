"""Made by protoc from ``../protos``; ``tests/unit/servers/grpc/test_protos.py`` makes it anew."""
