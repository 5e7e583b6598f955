"""Networks of the transformers library, built from a configuration; nothing is downloaded.

They give their scores as one tensor and keep their own names. The defaults are small, and any
field of the configuration can be set: ``hf_gpt2:n_layer=12,n_embd=768,n_head=12``. Weights of
embedding and head are not tied, as that would hold the first and the last stage together.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn

from hocket.errors import OptionError, listed, unknown


def hf_gpt2(*, vocab: int = 256, context: int = 64, **fields: Any) -> nn.Module:
    """GPT-2, from (B, T) token ids to (B, T, vocab) scores.

    Args:
        vocab: Different tokens.
        context: Longest sequence, in tokens.
        fields: Of `GPT2Config`.

    Raises:
        OptionError: transformers is not installed, or refuses a field.
    """
    small: dict[str, Any] = {"n_layer": 4, "n_embd": 128, "n_head": 4}
    own = _tokens(vocab_size=vocab, n_positions=context)
    return _built("hf_gpt2", "GPT2Config", "GPT2LMHeadModel", small | own, fields)


def hf_llama(*, vocab: int = 256, context: int = 64, **fields: Any) -> nn.Module:
    """Llama, from (B, T) token ids to (B, T, vocab) scores.

    Args:
        vocab: Different tokens.
        context: Longest sequence, in tokens.
        fields: Of `LlamaConfig`.

    Raises:
        OptionError: transformers is not installed, or refuses a field.
    """
    small: dict[str, Any] = {
        "num_hidden_layers": 4,
        "hidden_size": 128,
        "num_attention_heads": 4,
    }
    small |= {"intermediate_size": 352}
    own = _tokens(vocab_size=vocab, max_position_embeddings=context)
    return _built("hf_llama", "LlamaConfig", "LlamaForCausalLM", small | own, fields)


def hf_vit(
    *, num_classes: int = 10, in_channels: int = 3, image_size: int = 32, **fields: Any
) -> nn.Module:
    """Vision transformer, from (B, C, H, W) images to (B, num_classes) scores.

    Args:
        num_classes: Length of the output.
        in_channels: Channels of the images.
        image_size: Sides of the images, in pixels.
        fields: Of `ViTConfig`.

    Raises:
        OptionError: transformers is not installed, or refuses a field.
    """
    small: dict[str, Any] = {"patch_size": 4, "num_hidden_layers": 4, "hidden_size": 128}
    small |= {"num_attention_heads": 4, "intermediate_size": 512}
    own = _images(num_classes, in_channels) | {"image_size": image_size}
    return _built("hf_vit", "ViTConfig", "ViTForImageClassification", small | own, fields)


def hf_convnext(*, num_classes: int = 10, in_channels: int = 3, **fields: Any) -> nn.Module:
    """ConvNeXt, from (B, C, H, W) images to (B, num_classes) scores.

    Args:
        num_classes: Length of the output.
        in_channels: Channels of the images.
        fields: Of `ConvNextConfig`.

    Raises:
        OptionError: transformers is not installed, or refuses a field.
    """
    small: dict[str, Any] = {
        "patch_size": 2,
        "depths": [2, 2, 2, 2],
        "hidden_sizes": [32, 64, 128, 256],
    }
    own = _images(num_classes, in_channels)
    network = "ConvNextForImageClassification"
    return _built("hf_convnext", "ConvNextConfig", network, small | own, fields)


def hf_resnet(*, num_classes: int = 10, in_channels: int = 3, **fields: Any) -> nn.Module:
    """ResNet, from (B, C, H, W) images to (B, num_classes) scores.

    Args:
        num_classes: Length of the output.
        in_channels: Channels of the images.
        fields: Of `ResNetConfig`.

    Raises:
        OptionError: transformers is not installed, or refuses a field.
    """
    small: dict[str, Any] = {
        "embedding_size": 32,
        "hidden_sizes": [32, 64, 128, 256],
        "depths": [2, 2, 2, 2],
    }
    own = _images(num_classes, in_channels) | {"layer_type": "basic"}
    return _built(
        "hf_resnet", "ResNetConfig", "ResNetForImageClassification", small | own, fields
    )


def hf_swin(
    *, num_classes: int = 10, in_channels: int = 3, image_size: int = 32, **fields: Any
) -> nn.Module:
    """Swin transformer, from (B, C, H, W) images to (B, num_classes) scores.

    Args:
        num_classes: Length of the output.
        in_channels: Channels of the images.
        image_size: Sides of the images, in pixels.
        fields: Of `SwinConfig`.

    Raises:
        OptionError: transformers is not installed, or refuses a field.
    """
    small: dict[str, Any] = {
        "patch_size": 2,
        "embed_dim": 32,
        "depths": [2, 2],
        "num_heads": [2, 4],
    }
    own = _images(num_classes, in_channels) | {"image_size": image_size, "window_size": 4}
    return _built("hf_swin", "SwinConfig", "SwinForImageClassification", small | own, fields)


HUGGING_FACE: Mapping[str, Callable[..., nn.Module]] = MappingProxyType(
    {
        builder.__name__: builder
        for builder in (hf_gpt2, hf_llama, hf_vit, hf_convnext, hf_resnet, hf_swin)
    }
)


def _tokens(**sizes: int) -> dict[str, Any]:
    # Ids of special tokens have defaults beyond small vocabularies; no training asks for them.
    ids = {"bos_token_id": 0, "eos_token_id": 0}
    return {"tie_word_embeddings": False, "use_cache": False} | ids | sizes


def _images(num_classes: int, in_channels: int) -> dict[str, Any]:
    return {"num_labels": num_classes, "num_channels": in_channels}


def _built(
    name: str, config: str, network: str, chosen: dict[str, Any], fields: dict[str, Any]
) -> nn.Module:
    """The network of a configuration, giving its scores."""
    try:
        # The package is optional, so the type checker may or may not find it.
        import transformers  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError as error:
        raise OptionError(
            f"network {name!r} needs the package transformers, which is not installed; "
            "pip install 'hocket[transformers]'"
        ) from error
    make: Any = getattr(transformers, config)
    known = sorted(vars(make()))
    wrong = [unknown("field", field, known) for field in fields if field not in known]
    if wrong:
        raise OptionError(listed(f"cannot build network {name!r} from a {config}", wrong))
    try:
        made: nn.Module = getattr(transformers, network)(make(**(chosen | fields)))
    except Exception as error:
        raise OptionError(
            f"transformers refuses the network {name!r}: {error}; change its fields"
        ) from error
    made.register_forward_hook(_scores)
    return made


def _scores(network: nn.Module, inputs: Any, output: Any) -> Tensor:
    """The scores among what a network of transformers gives."""
    scores: Tensor = output.logits
    return scores
