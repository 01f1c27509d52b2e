from typing import Any

nccl: Any
