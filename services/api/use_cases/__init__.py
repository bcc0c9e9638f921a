"""What users can do, one function each, in a module by resource.

A function gets the services, the caller's ``Principal`` and typed parameters, and returns one answer (``answers.py``)
or a stream of answers. Its parameters and answer types stand in the same module. An entry point (``rest``, ``grpc``)
authenticates, checks the permission, reads the request, calls the function and serialises the answer; it decides
nothing. A test checks that both entry points lead to every public function of these modules with the same permission.
"""
