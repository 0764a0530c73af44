"""What was done, for programs (JSON) and for people (tables): collected after the fact, it decides nothing."""

from __future__ import annotations
