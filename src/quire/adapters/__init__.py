"""What names an adapter: `LoRARequest`, and the `--lora-modules` of a server."""

from quire.adapters.modules import AdapterModule, parse_modules
from quire.adapters.request import LoRARequest

__all__ = ["AdapterModule", "LoRARequest", "parse_modules"]
