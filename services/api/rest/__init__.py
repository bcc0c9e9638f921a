"""The api over HTTP: thin routes that read a request, call one use case, and write down its answer."""
