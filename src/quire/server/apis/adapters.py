"""The routes that load and unload LoRA adapters, as in vLLM. They exist if the engine has adapters
and the operator allows it."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from quire.adapters import AdapterModule
from quire.server.bodies.json_http import context_of, queried_model
from quire.server.routing import Routes


class LoadLoRARequest(msgspec.Struct, kw_only=True):
    """An adapter to load."""

    lora_name: str = ""
    lora_path: str = ""
    """Folder on the server's machine."""
    load_inplace: bool = False
    """Whether the adapter replaces one of the same name."""
    is_3d_lora_weight: bool = False


class UnloadLoRARequest(msgspec.Struct, kw_only=True):
    """An adapter to remove."""

    lora_name: str = ""
    lora_int_id: int | None = None
    """Accepted for compatibility: the name says which adapter."""


class SageMakerAdapter(msgspec.Struct, kw_only=True):
    """An adapter to load, as Amazon SageMaker names it."""

    name: str = ""
    src: str = ""
    """Folder on the server's machine."""


ROUTES = Routes("models", "adapters")


@ROUTES.on("POST", "/v1/load_lora_adapter", media="text/plain")
async def load(http: Request, request: LoadLoRARequest) -> Response:
    """Loads an adapter, or replaces one in place. Requests in flight keep what they began with."""
    context, model = context_of(http), queried_model(http)
    module = AdapterModule(request.lora_name, request.lora_path)
    taken = [name for one in context.models for name in one.names]
    engine = model.live_engine()
    await model.adapters.load(engine, module, taken, in_place=request.load_inplace)
    name = request.lora_name
    return PlainTextResponse(f"Success: LoRA adapter '{name}' added successfully.")


@ROUTES.on("POST", "/adapters", media="text/plain")
async def load_of_sagemaker(http: Request, request: SageMakerAdapter) -> Response:
    """Same as /v1/load_lora_adapter. For Amazon SageMaker."""
    return await load(http, LoadLoRARequest(lora_name=request.name, lora_path=request.src))


@ROUTES.on("DELETE", "/adapters/{name}", media="text/plain")
async def unload_of_sagemaker(http: Request) -> Response:
    """Same as /v1/unload_lora_adapter. For Amazon SageMaker."""
    return await unload(http, UnloadLoRARequest(lora_name=http.path_params["name"]))


@ROUTES.on("POST", "/v1/unload_lora_adapter", media="text/plain")
async def unload(http: Request, request: UnloadLoRARequest) -> Response:
    """Removes an adapter and gives its memory back. Requests in flight go on."""
    model = queried_model(http)
    await model.adapters.unload(model.live_engine(), request.lora_name)
    return PlainTextResponse(f"Success: LoRA adapter '{request.lora_name}' removed successfully.")
