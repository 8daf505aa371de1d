"""Unpacks image files of all kinds that Pillow reads, and makes of each what `digits` wants to see."""

import io

import numpy as np
import triton_python_backend_utils as pb_utils
from PIL import Image

SIDE = 8
WHITE = 255
INK = 16
MOST_PIXELS = 64_000_000


def decode(file):
    """An image file (UINT8; what follows its end is ignored) as ink on paper: FP32 [8, 8], 0 for white, 16 for black.

    Raises:
        ValueError: it is none, or a huge one.
    """
    try:
        with Image.open(io.BytesIO(file.tobytes())) as image:
            if image.width * image.height > MOST_PIXELS:
                raise ValueError(f"more than {MOST_PIXELS} pixels")
            if image.has_transparency_data:
                paper = Image.new("RGBA", image.size, "white")
                image = Image.alpha_composite(paper, image.convert("RGBA"))
            pixels = np.asarray(image.convert("L").resize((SIDE, SIDE), Image.Resampling.BOX), np.float32)
    except Image.DecompressionBombError as error:
        raise ValueError(f"more than {MOST_PIXELS} pixels") from error
    except (OSError, SyntaxError) as error:
        raise ValueError("no image file, or not all of one") from error
    return (WHITE - pixels) * INK / WHITE


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        images = []
        for number, file in enumerate(pb_utils.get_input_tensor_by_name(request, "FILE").as_numpy()):
            try:
                images.append(decode(file))
            except ValueError as error:
                text = f"digits_decode: file {number} of the request: {error}"
                return pb_utils.InferenceResponse(error=pb_utils.TritonError(text, pb_utils.TritonError.INVALID_ARG))
        return pb_utils.InferenceResponse([pb_utils.Tensor("IMAGE", np.stack(images))])
