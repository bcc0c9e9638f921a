"""The REST entry point: thin routes that read a request, call one use case and write its answer as JSON."""
