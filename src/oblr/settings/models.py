"""Whether there is a model of a name: a folder, or one that the Hub gives out."""

import functools
import os
from pathlib import Path
from typing import Any, cast

from oblr.errors import SettingError

#: How long the Hub may take to answer, seconds. Libraries ask it again and again, for a minute.
PATIENCE = 5


@functools.cache
def find_model(setting: str, path: str) -> None:
    """Raises SettingError where ``path`` is no model folder, not in the Hub's cache, and the Hub does not know it."""
    if Path(path).is_dir():
        if not Path(path, "config.json").is_file():
            if Path(path, "adapter_config.json").is_file():
                raise SettingError(setting, f"{path} is an adapter", "merge it into its base model, and give that")
            raise SettingError(setting, f"{path} is not a model", "give a Hugging Face model folder with a config.json")
        return
    if Path(path).exists():
        raise SettingError(setting, f"{path} is a file", "give the folder of a Hugging Face model")
    os.environ.setdefault("HF_HUB_ETAG_TIMEOUT", str(PATIENCE))
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

    # of whichever library the Hub's client speaks HTTP by
    unreachable: tuple[type[Exception], ...] = (OSError, *cast(Any, HfHubHTTPError.__bases__))
    missing = functools.partial(SettingError, setting)
    try:
        if isinstance(try_to_load_from_cache(path, "config.json"), str):
            return
        HfApi().model_info(path, timeout=PATIENCE)
    except HFValidationError as error:
        raise missing(f"no folder {path}, and no model of the Hub can have that name", "check the name") from error
    except HfHubHTTPError as error:
        raise missing(
            f"no folder {path}, and the hub does not give out a model of that name", "check name and token"
        ) from error
    except OfflineModeIsEnabled as error:
        raise missing(
            f"no folder {path}, and the hub's cache does not have it", "check the name, or go online"
        ) from error
    except unreachable as error:
        raise missing(f"no folder {path}, and the hub does not answer", "check name and network") from error
