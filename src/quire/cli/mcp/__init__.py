"""Tools of servers of the Model Context Protocol (MCP), for `quire run` and `quire chat`.

The extra `quire-engine[mcp]` has the package `mcp`, which is imported only with `--mcp-config`.
"""
