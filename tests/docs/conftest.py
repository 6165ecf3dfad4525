"""Pages embed the same texts: each is embedded once."""

import pytest

from ragshield_core.huggingface.minilm import MiniLM


@pytest.fixture(scope="session", autouse=True)
def embedded_once():
    embed, known = MiniLM.embed, {}

    def remembered(self, texts, on_progress=None):
        new = [text for text in dict.fromkeys(texts) if text not in known]
        known.update(zip(new, embed(self, new), strict=True))
        if on_progress is not None:
            on_progress(len(texts))
        return [known[text] for text in texts]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MiniLM, "embed", remembered)
        yield
