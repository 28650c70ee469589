"""Flags of earlier versions, on the command line, in flagfiles and in workdirs."""

from collections.abc import Mapping

# {flag of the previous version: present name}
RENAMED_FLAGS: dict[str, str] = {
    "block": "chunk_size",
    "corruptions_from": "corrupted_dir",
    "curves": "curve_attacks",
    "layout": "dataset_format",
    "sweep_measure": "sweep_metric",
    "urrl_share": "urrl_probability",
    "validation_share": "validation_fraction",
    **{
        f"{view}_smallest": f"{view}_min_crop_area"
        for view in ("simclr", "moco_v1", "moco_v2", "window_augmix", "window_augmix_moco", "urrl")
    },
}


def current_flags(recorded: Mapping[str, str]) -> dict[str, str]:
    """Returns recorded flags, {name: text}, under their present names and with the values that have the same effect now."""
    flags = {RENAMED_FLAGS.get(name, name): text for name, text in recorded.items()}
    method = flags.get("method")
    if flags.get("image_size") == "224" and "image_fit" not in flags and not flags.get("data", "").startswith("folder:"):
        del flags["image_size"]  # applied to images of varying size only, as the present default does
    if flags.get("fcl_update_statistics") == "False":
        del flags["fcl_update_statistics"]
    if method == "fcl":
        flags.setdefault("fcl_batch_norm", "own")
    if method == "augmax":
        flags.setdefault("augmax_dual_batch_norm", "False")
    return flags
