"""Made by protoc from ``../protos``; ``tests/unit/frontends/grpc/test_protos.py`` makes it anew."""
