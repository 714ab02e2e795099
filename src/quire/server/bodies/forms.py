"""Reads what a request gives without JSON: bodies of type `multipart/form-data`, with texts and
files, and the parameters of a query.

A small body is in memory. A larger one is in a temporary file while it is read, and each large file
of it in one of its own, which is deleted with the request (uploads.py).
"""

from __future__ import annotations

import asyncio
import mmap
import re
import secrets
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar, get_args, get_origin

import msgspec
from starlette.requests import Request

from quire.errors import RequestError, quoted
from quire.server.bodies.json_http import accepted, check_encoding, context_of
from quire.server.bodies.lax_values import Body, decode_form
from quire.server.bodies.uploads import SPOOLED_BYTES, Upload, UploadSpace, freed_on_error
from quire.server.endpoint import Endpoint
from quire.server.http.problems import HttpError, Problem, decode_problem
from quire.units import KiB, MiB

_MAX_PARTS = 64
_MAX_HEAD_BYTES = 4 * KiB
"""Most bytes of the headers of a part."""
_MAX_TEXT_BYTES = 64 * KiB
"""Most bytes of all texts together."""
_PIECE = 1 * MiB
"""Bytes that are searched at once."""
_BYTES_PER_UNIT = 1024
"""Bytes that are divided as fast as one unit of the pool's sizes is done."""
_BOUNDARY = re.compile(r';\s*boundary=(?:"([^"]{1,200})"|([^\s;"]{1,200}))', re.IGNORECASE)
_DISPOSITION = re.compile(r"(?im)^content-disposition:\s*form-data\s*(;.*)$")
_PARAMETER = re.compile(r';\s*([\w*]+)=(?:"((?:[^"\\]|\\.)*)"|([^\s;"]*))')


class Part(NamedTuple):
    """A field of a form."""

    name: str
    is_file: bool
    data: bytes | Upload


async def read_form(request: Request, kind: type[Body]) -> Body:
    """The request's form as `kind`, whose fields are scalars, texts, lists of texts, or an `Upload`
    for a file; otherwise as `read_body`. Raises HttpError 415, 400 and 503, RequestError, and what
    loading a model raises."""
    media = request.headers.get("content-type", "")
    if media.partition(";")[0].strip().lower() != "multipart/form-data":
        raise HttpError(Problem(415, "Only the content type multipart/form-data is understood."))
    check_encoding(request)
    found = _BOUNDARY.search(media)
    if found is None:
        raise RequestError("the content type must name the boundary of the parts")
    parts = await _parts(request, (found[1] or found[2]).encode("latin-1"))
    with freed_on_error(part.data for part in parts):
        values = _values(parts, kind)
        try:
            decoded = decode_form(values, kind)
        except msgspec.ValidationError as error:
            raise HttpError(_form_problem(error, values, kind)) from None
        return await accepted(request, decoded)


async def _parts(request: Request, boundary: bytes) -> list[Part]:
    body = bytearray()  # Request.body would keep the files a second time
    context, spooled = context_of(request), None
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > SPOOLED_BYTES:
                spooled = spooled or context.uploads.file()
                await asyncio.to_thread(spooled.write, body)
                body = bytearray()
        if spooled is None:
            size = len(body) // _BYTES_PER_UNIT
            return await context.pool.run(size, parts_of, body, boundary)
        await asyncio.to_thread(spooled.write, body)
        with mmap.mmap(spooled.fileno(), 0, access=mmap.ACCESS_READ) as data:
            size = len(data) // _BYTES_PER_UNIT
            return await context.pool.run_on_thread(size, parts_of, data, boundary, context.uploads)
    finally:
        if spooled is not None:
            spooled.close()


def form_of(texts: Iterable[tuple[str, str]], file: bytes) -> tuple[str, bytes]:
    """The content type and the body of a form with these texts, and a file as `file`."""
    mark = secrets.token_hex(16)
    head = f"--{mark}\r\nContent-Disposition: form-data; name="
    parts = [f'{head}"{name}"\r\n\r\n{text}\r\n'.encode() for name, text in texts]
    parts += [f'{head}"file"; filename="file"\r\n\r\n'.encode(), file, b"\r\n"]
    return f"multipart/form-data; boundary={mark}", b"".join(parts) + f"--{mark}--".encode()


def parts_of(
    body: bytearray | mmap.mmap, boundary: bytes, uploads: UploadSpace | None = None
) -> list[Part]:
    """The parts of a body, whose large files go to `uploads` if that is given. Raises RequestError,
    and HttpError if they do not fit."""
    mark = b"\r\n--" + boundary
    parts = list[Part]()
    is_first = body[: len(mark) - 2] == mark[2:]
    begin = len(mark) - 2 if is_first else _after(body, mark, 0)
    with freed_on_error(part.data for part in parts):
        while body[begin : begin + 2] != b"--":
            head_end = body.find(b"\r\n\r\n", begin, begin + _MAX_HEAD_BYTES)
            if head_end < 0:
                raise _malformed(
                    f"the headers of a part must end with an empty line after at most "
                    f"{_MAX_HEAD_BYTES} bytes"
                )
            end = _after(body, mark, head_end + 2)
            text = body[begin:head_end].decode("utf-8", "replace")
            inner = range(head_end + 4, max(head_end + 4, end - len(mark)))
            part = _part(text)
            if uploads is not None and part.is_file and len(inner) > SPOOLED_BYTES:
                parts.append(part._replace(data=uploads.copied(body, inner)))
            else:
                parts.append(part._replace(data=bytes(body[inner.start : inner.stop])))
            if len(parts) > _MAX_PARTS:
                raise RequestError(f"the form has more than {_MAX_PARTS} parts")
            begin = end
    return parts


def _after(body: bytearray | mmap.mmap, mark: bytes, begin: int) -> int:
    """End of the next boundary."""
    while begin < len(body):
        place = body.find(mark, begin, begin + _PIECE + len(mark))
        if place >= 0:
            return place + len(mark)
        begin += _PIECE
    raise _malformed("the boundary that the content type names does not end its last part")


def _part(head: str) -> Part:
    found = _DISPOSITION.search(head)
    pairs = [] if found is None else _PARAMETER.findall(found[1])
    given = {name.lower(): text or word for name, text, word in pairs}
    if head.partition("\r\n")[0].strip() or not given.get("name"):
        raise _malformed("a part must begin with the header Content-Disposition and a name")
    return Part(given["name"], "filename" in given or "filename*" in given, b"")


def _values(parts: list[Part], kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The values by field. As for vLLM, an empty text is none. Raises RequestError."""
    types = {field.name: field.type for field in msgspec.structs.fields(kind)}
    values: dict[str, Any] = {}
    num_bytes = 0
    for name, is_file, data in parts:
        name = name.removesuffix("[]")
        if name in types and is_file != _is_file(types[name]):
            raise RequestError(
                f"{name} must be a {'text, not a file' if is_file else 'file, not a text'}",
                parameter=name,
            )
        if name in types and is_file and data == b"":
            raise RequestError(f"{name} must be a file with content; it is empty", parameter=name)
        if is_file and isinstance(data, bytes):
            data = Upload(data)
        num_bytes += 0 if isinstance(data, Upload) else len(data)
        if num_bytes > _MAX_TEXT_BYTES:
            raise RequestError(
                f"the texts of the form have more than {_MAX_TEXT_BYTES} bytes", parameter=name
            )
        try:
            value = data if isinstance(data, Upload) else data.decode("utf-8")
        except UnicodeDecodeError:
            raise RequestError(f"{quoted(name)} is not valid UTF-8", parameter=name) from None
        if get_origin(types.get(name)) is list:
            values.setdefault(name, []).append(value)
        elif name in values and name in types:
            raise RequestError(f"the form has {name} more than once", parameter=name)
        elif value or is_file:
            values[name] = value
    return values


def _form_problem(
    error: msgspec.ValidationError, values: dict[str, Any], kind: type[msgspec.Struct]
) -> Problem:
    """The reply to values of which one does not fit. Texts are all that a form has, so it says what
    the text must be."""
    problem = decode_problem(error)
    types = {field.name: field.type for field in msgspec.structs.fields(kind)}
    value = values.get(problem.param or "")
    if not isinstance(value, str) or problem.param not in types:
        return problem
    works = _what_works(msgspec.json.schema(types[problem.param]))
    if not works:
        return problem
    return replace(problem, message=f"{problem.param} must be {works}, got {quoted(value)}")


def _is_file(kind: Any) -> bool:
    return kind is Upload or Upload in get_args(kind)


def _malformed(why: str) -> RequestError:
    return RequestError(f"the form is malformed: {why}")


# --- queries

Query = TypeVar("Query", bound=msgspec.Struct)

_WHERE = re.compile(r" - at `\$\.(\w{1,100})[^`]{0,100}`$")


def read_query(request: Request, kind: type[Query]) -> Query:
    """The query as `kind`, whose fields are numbers, booleans, texts, or lists of texts.

    Raises HttpError 400 for an unknown parameter, and for a value that does not fit.
    """
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    values: dict[str, Any] = {}
    takes_model = Endpoint.of(request).takes_model_in_query
    for name, value in request.query_params.multi_items():
        if name == "model" and takes_model:
            continue
        if name.endswith("[]") and name[:-2] in fields:
            name = name[:-2]  # a list as some clients write it
        if name not in fields:
            known = " and ".join(fields) or "no parameters"
            raise _problem(name, f"Unknown query parameter {quoted(name)}: this route has {known}.")
        if get_origin(fields[name].type) is list:
            values.setdefault(name, []).append(value)
        elif name in values:
            raise _problem(name, f"The query has {name} more than once; give it once.")
        else:
            values[name] = value
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        found = _WHERE.search(str(error))
        name = found.group(1) if found else ""
        works = _what_works(msgspec.json.schema(fields[name].type)) if name in fields else ""
        what = f": it is {works}" if works else ""
        raise _problem(name, f"{name}={quoted(values.get(name))} is refused{what}.") from None


def _problem(name: str, message: str) -> HttpError:
    param = f"query.{name[:100]}" if name else None
    return HttpError(Problem(400, message, param=param, type="Bad Request"))


def _what_works(schema: dict[str, Any]) -> str:
    """Describes the values of a schema for a message; an empty text if that is not known."""
    if "anyOf" in schema:
        [schema, *_] = [one for one in schema["anyOf"] if one.get("type") != "null"]
    if schema.get("type") == "array":
        return _what_works(schema["items"])
    if "enum" in schema:
        return f"one of {', '.join(sorted(schema['enum']))}"
    if schema.get("type") == "integer":
        return f"a whole number from {schema['minimum']} to {schema['maximum']}"
    return {"boolean": "true or false", "number": "a number"}.get(str(schema.get("type")), "")
