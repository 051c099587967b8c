"""Every setting of a run: read, checked, and named once.

from postrl.config import GRPOConfig
"""

from __future__ import annotations

from postrl.config.config import GRPOConfig as GRPOConfig
from postrl.config.config import PPOConfig as PPOConfig
from postrl.config.config import RLOOConfig as RLOOConfig
