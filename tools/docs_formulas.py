"""A Markdown extension that typesets ``$y = x^2$`` as MathML, which browsers draw by themselves.

Formulas need no script and no network. A block between lines of ``$$`` is set apart. Code keeps
its dollars, and so does an amount of money: a formula neither begins nor ends with a space, and no
digit or letter follows it. A formula with a command that is not known ends the build.
"""

import re
import xml.etree.ElementTree as etree

from latex2mathml.converter import convert
from markdown import Markdown
from markdown.blockparser import BlockParser
from markdown.blockprocessors import BlockProcessor
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor

INLINE = r"(?<![\\$\w])\$(?!\s)((?:\\.|[^$\\\n])+?)(?<!\s)\$(?![$\w])"
BLOCK = re.compile(r"^\$\$\n(.+)\n\$\$$", re.S)
# The converter makes an identifier of each letter of a word in ``mathrm``, and of an angle bracket.
_LETTERS = re.compile(r'(?:<mi mathvariant="normal">\w</mi>){2,}')
_ANGLE = re.compile(r"<mi>(&#x027E[89];)</mi>")


def mathml(formula: str, display: str = "inline") -> str:
    """Returns the MathML of a formula in LaTeX.

    Raises:
      ValueError: A command is not known: its name would be printed instead.
    """
    # The converter knows the environment by its other name alone.
    html = convert(re.sub(r"(begin|end)\{aligned\}", r"\1{align*}", formula), display=display)
    if unknown := re.findall(r">(\\\w+|&)<", html):
        raise ValueError(f"formula {formula!r} has {', '.join(unknown)}, which is not known")
    words = _LETTERS.sub(lambda run: f"<mi>{re.sub('<[^>]+>', '', run[0])}</mi>", html)
    return _ANGLE.sub(r'<mo stretchy="false">\1</mo>', words)


class _Inline(InlineProcessor):
    def handleMatch(self, match: re.Match, data: str):
        return self.md.htmlStash.store(mathml(match[1])), match.start(0), match.end(0)


class _Block(BlockProcessor):
    def test(self, parent: etree.Element, block: str) -> bool:
        return BLOCK.match(block) is not None

    def run(self, parent: etree.Element, blocks: list[str]) -> None:
        match = BLOCK.match(blocks.pop(0))
        assert match is not None
        paragraph = etree.SubElement(parent, "p")
        paragraph.text = self.parser.md.htmlStash.store(mathml(match[1], "block"))


class Formulas(Extension):
    """Adds formulas to Markdown, behind code and before escapes."""

    def extendMarkdown(self, md: Markdown) -> None:
        """Registers the patterns of inline formulas and of formulas in paragraphs of their own."""
        md.inlinePatterns.register(_Inline(INLINE, md), "formula", 185)
        parser: BlockParser = md.parser
        parser.blockprocessors.register(_Block(parser), "formula", 75)


def makeExtension(**options: object) -> Formulas:
    """Returns the extension; Markdown calls this by its name."""
    return Formulas(**options)
