"""Position of a loader as it was before it was read ahead."""

from __future__ import annotations

import copy
import logging
from contextlib import suppress
from typing import Any, cast

import torch

from flyball_integrations.shared.attachment import Overrides

_logger = logging.getLogger(__name__)


class LoaderPosition:
    """Position of a loader as it was before a step was read ahead.

    A loader shows at most one, that of its newest pass.
    """

    def __init__(self, loader: object) -> None:
        self._loader = loader
        self._is_stateful = callable(getattr(loader, "state_dict", None))
        self._overrides = Overrides()
        self._state: object = None
        self._iterator: object = None
        # The loader's own one as the loop was left, if it is watched.
        self._own: object = None
        self.captured: object = None
        self._can_be_held = True
        #: True: the loader was set elsewhere since this position was kept.
        self.is_lost = False

    def hold(self) -> bool:
        """Keep the position as it is now; return whether that was possible."""
        if not self.capture():
            return False
        self.show(self.captured)
        return True

    def capture(self) -> bool:
        """Copy the position as it is now to `captured`; return whether that was possible."""
        loader: Any = self._loader
        if not self._can_be_held:
            return False
        if not self._is_stateful:
            return True
        self.release()
        try:
            # What it returns may be what it goes on to change.
            self.captured = copy.deepcopy(loader.state_dict())
            self._iterator = vars(loader).get("_iterator")
        except AttributeError:  # accelerate's, around one without a position
            self._is_stateful = False
        except Exception as error:
            self._can_be_held = False
            _logger.warning("steps are not announced: state_dict of the loader: %s", error)
        return self._can_be_held

    def show(self, state: object) -> None:
        """Let the loader have a position that was captured."""
        loader: Any = self._loader
        self._overrides.remove()
        self._state, self.is_lost = state, False
        if self._is_stateful:
            self._overrides.set(loader, "state_dict", self._state_dict)
            if callable(getattr(loader, "load_state_dict", None)):
                self._overrides.set(loader, "load_state_dict", self._load_state_dict)

    def release(self) -> None:
        """Let the loader have its own position, whichever pass has overridden it."""
        override = getattr(self._loader, "__dict__", {}).get("state_dict")
        shown = getattr(override, "__self__", None)
        if isinstance(shown, LoaderPosition) and shown is not self:
            shown.lose()
        self._overrides.remove()
        self._state, self._own, self.is_lost = None, None, False

    def lose(self) -> None:
        """Let the loader have its own position, which what was read ahead does not follow."""
        self.release()
        self.is_lost = True

    def watch(self) -> None:
        """Let the loader have its own position again as soon as that changes.

        For a loop that was left: another pass may then begin without this class.
        """
        override = getattr(self._loader, "__dict__", {}).get("state_dict")
        if getattr(override, "__self__", None) is self:
            with suppress(Exception):  # as at the end of the process
                self._own = copy.deepcopy(self._own_state())

    def _own_state(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the loader's
        state = self._state
        self._overrides.remove()
        try:
            return cast("Any", self._loader).state_dict(*args, **kwargs)
        finally:
            self.show(state)

    def _state_dict(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the loader's
        loader: Any = self._loader
        # torch's loaders: another iterator, and so another pass that was begun without this class.
        has_moved = vars(loader).get("_iterator") is not self._iterator
        if not has_moved and self._own is not None:
            has_moved = _differ(self._own, self._own_state(*args, **kwargs))
        if not has_moved:
            return copy.deepcopy(self._state)
        self.lose()
        return loader.state_dict(*args, **kwargs)

    def _load_state_dict(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as above
        self.lose()
        return cast("Any", self._loader).load_state_dict(*args, **kwargs)


def _differ(first: object, second: object) -> bool:
    """Return whether states differ for certain, as their plain values and tensors tell."""
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() != second.keys() or any(
            _differ(value, second[key]) for key, value in first.items()
        )
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        return len(first) != len(second) or any(map(_differ, first, second))
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        return not torch.equal(first, second)
    plain = (str, bytes, int, float)
    if not isinstance(first, plain) or not isinstance(second, plain):
        return False
    return repr(first) != repr(second)  # not-a-number is like itself
