"""The api: what users and programs call, over REST and gRPC."""
