"""The form of a stored chunk: a valid safetensors file with a checksum.

    8 bytes      length of the header, little-endian
    header       JSON: `kv`, one tensor of U8 [blocks, block_bytes], and `__metadata__`
    padding      blanks up to 4,096 bytes in all
    K/V          as `CompiledModel.read_blocks` gives it

The same bytes are a file, a value in Redis and an object in a bucket. Nothing of a chunk is
trusted: header, sizes, key and checksum have to be those that are expected.
"""
