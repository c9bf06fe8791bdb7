"""Make the links of README.md absolute for a release, because PyPI shows it without the repository."""

import re
import tomllib
from pathlib import Path

root = Path(__file__).parents[1]
source = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]["urls"]["Source"]
raw = source.replace("https://github.com/", "https://raw.githubusercontent.com/")

readme = root / "README.md"
text = readme.read_text("utf-8")
text = re.sub(r'(<img src=")(?!https?:)', rf"\g<1>{raw}/main/", text)
text = re.sub(r"(\]\()(?!https?:|#)", rf"\g<1>{source}/blob/main/", text)
readme.write_text(text, "utf-8")
