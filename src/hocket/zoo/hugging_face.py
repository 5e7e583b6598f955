"""Networks of the transformers library, built from a configuration; nothing is downloaded.

They return their scores as one tensor, and their modules keep their names. The defaults are
small, and any field of the configuration can be set:
``hf_gpt2:n_layer=12,n_embd=768,n_head=12``. Weights of embedding and head are not tied, because
a tie would force both into one stage.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn

from hocket.errors import OptionError, format_problems, import_extra, unknown_name


def hf_gpt2(*, vocab: int = 256, context: int = 64, **fields: Any) -> nn.Module:
    """Build GPT-2, from (B, T) token ids to (B, T, vocab) scores.

    Args:
        vocab: Number of different tokens.
        context: Length of the longest sequence, in tokens.
        fields: Fields of `GPT2Config`, which override these.

    Raises:
        OptionError: transformers is not installed, or rejects a field.
    """
    defaults: dict[str, Any] = {"n_layer": 4, "n_embd": 128, "n_head": 4}
    sizes = _token_fields(vocab_size=vocab, n_positions=context)
    return _build("hf_gpt2", "GPT2Config", "GPT2LMHeadModel", defaults | sizes, fields)


def hf_llama(*, vocab: int = 256, context: int = 64, **fields: Any) -> nn.Module:
    """Build Llama, from (B, T) token ids to (B, T, vocab) scores.

    Args:
        vocab: Number of different tokens.
        context: Length of the longest sequence, in tokens.
        fields: Fields of `LlamaConfig`, which override these.

    Raises:
        OptionError: transformers is not installed, or rejects a field.
    """
    defaults: dict[str, Any] = {
        "num_hidden_layers": 4,
        "hidden_size": 128,
        "num_attention_heads": 4,
    }
    defaults |= {"intermediate_size": 352}
    sizes = _token_fields(vocab_size=vocab, max_position_embeddings=context)
    return _build("hf_llama", "LlamaConfig", "LlamaForCausalLM", defaults | sizes, fields)


def hf_vit(
    *, num_classes: int = 10, in_channels: int = 3, image_size: int = 32, **fields: Any
) -> nn.Module:
    """Build a vision transformer, from (B, C, H, W) images to (B, num_classes) scores.

    Args:
        num_classes: Length of the output.
        in_channels: Channels of the images.
        image_size: Height and width of the images, in pixels.
        fields: Fields of `ViTConfig`, which override these.

    Raises:
        OptionError: transformers is not installed, or rejects a field.
    """
    defaults: dict[str, Any] = {"patch_size": 4, "num_hidden_layers": 4, "hidden_size": 128}
    defaults |= {"num_attention_heads": 4, "intermediate_size": 512}
    sizes = _image_fields(num_classes, in_channels) | {"image_size": image_size}
    return _build("hf_vit", "ViTConfig", "ViTForImageClassification", defaults | sizes, fields)


def hf_convnext(*, num_classes: int = 10, in_channels: int = 3, **fields: Any) -> nn.Module:
    """Build ConvNeXt, from (B, C, H, W) images to (B, num_classes) scores.

    Args:
        num_classes: Length of the output.
        in_channels: Channels of the images.
        fields: Fields of `ConvNextConfig`, which override these.

    Raises:
        OptionError: transformers is not installed, or rejects a field.
    """
    defaults: dict[str, Any] = {
        "patch_size": 2,
        "depths": [2, 2, 2, 2],
        "hidden_sizes": [32, 64, 128, 256],
    }
    sizes = _image_fields(num_classes, in_channels)
    network = "ConvNextForImageClassification"
    return _build("hf_convnext", "ConvNextConfig", network, defaults | sizes, fields)


def hf_resnet(*, num_classes: int = 10, in_channels: int = 3, **fields: Any) -> nn.Module:
    """Build a ResNet, from (B, C, H, W) images to (B, num_classes) scores.

    Args:
        num_classes: Length of the output.
        in_channels: Channels of the images.
        fields: Fields of `ResNetConfig`, which override these.

    Raises:
        OptionError: transformers is not installed, or rejects a field.
    """
    defaults: dict[str, Any] = {
        "embedding_size": 32,
        "hidden_sizes": [32, 64, 128, 256],
        "depths": [2, 2, 2, 2],
    }
    sizes = _image_fields(num_classes, in_channels) | {"layer_type": "basic"}
    return _build(
        "hf_resnet", "ResNetConfig", "ResNetForImageClassification", defaults | sizes, fields
    )


def hf_swin(
    *, num_classes: int = 10, in_channels: int = 3, image_size: int = 32, **fields: Any
) -> nn.Module:
    """Build a Swin transformer, from (B, C, H, W) images to (B, num_classes) scores.

    Args:
        num_classes: Length of the output.
        in_channels: Channels of the images.
        image_size: Height and width of the images, in pixels.
        fields: Fields of `SwinConfig`, which override these.

    Raises:
        OptionError: transformers is not installed, or rejects a field.
    """
    defaults: dict[str, Any] = {
        "patch_size": 2,
        "embed_dim": 32,
        "depths": [2, 2],
        "num_heads": [2, 4],
    }
    sizes = _image_fields(num_classes, in_channels) | {
        "image_size": image_size,
        "window_size": 4,
    }
    return _build(
        "hf_swin", "SwinConfig", "SwinForImageClassification", defaults | sizes, fields
    )


HUGGING_FACE: Mapping[str, Callable[..., nn.Module]] = MappingProxyType(
    {
        builder.__name__: builder
        for builder in (hf_gpt2, hf_llama, hf_vit, hf_convnext, hf_resnet, hf_swin)
    }
)


def _token_fields(**sizes: int) -> dict[str, Any]:
    # The default ids of special tokens are outside small vocabularies; training uses none.
    ids = {"bos_token_id": 0, "eos_token_id": 0}
    return {"tie_word_embeddings": False, "use_cache": False} | ids | sizes


def _image_fields(num_classes: int, in_channels: int) -> dict[str, Any]:
    return {"num_labels": num_classes, "num_channels": in_channels}


def _build(
    name: str, config: str, network: str, defaults: dict[str, Any], fields: dict[str, Any]
) -> nn.Module:
    """Build a network that returns its scores, from a configuration.

    Args:
        name: Name of the network in the zoo.
        config: Name of the class of its configuration in transformers.
        network: Name of its class in transformers.
        defaults: Fields of the configuration, by name.
        fields: The user's fields, which override them.

    Raises:
        OptionError: The configuration has no such field, or transformers refuses the network.
    """
    transformers: Any = import_extra("transformers", "transformers", f"network {name!r}")
    config_class = getattr(transformers, config)
    # The type of weights is up to the caller, and names that begin with _ are no options.
    known = sorted(name for name in vars(config_class()) if name[0] != "_" and name != "dtype")
    problems = [unknown_name("field", field, known) for field in fields if field not in known]
    if problems:
        raise OptionError(
            format_problems(f"cannot build network {name!r} from a {config}", problems)
        )
    try:
        built: nn.Module = getattr(transformers, network)(config_class(**(defaults | fields)))
    except Exception as error:
        raise OptionError(
            f"transformers refuses the network {name!r}: {error}; change its fields"
        ) from error
    built.register_forward_hook(_return_scores)
    return built


def _return_scores(network: nn.Module, inputs: Any, output: Any) -> Tensor:
    """Replace the output object of transformers by the scores in it, (B, ...)."""
    scores: Tensor = output.logits
    return scores
