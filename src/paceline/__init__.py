"""Paceline: paced prefills for vLLM, declared as Kubernetes objects, changed live and measured."""

from typing import Final

__version__: Final = "0.1.0"
