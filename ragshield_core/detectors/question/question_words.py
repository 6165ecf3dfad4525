"""Question words of many languages, by the kind of answer that they ask for."""

from __future__ import annotations

import re

# Kinds of answers that a question can ask for.
ABOUT = (
    "anything",
    "what something is",
    "which one",
    "who",
    "when",
    "where",
    "why",
    "how",
    "how much",
    "yes or no",
)
ANYTHING, WHAT, WHICH, WHO, WHEN, WHERE, WHY, HOW, MEASURE, YES_NO = range(len(ABOUT))

# English, German, Dutch, Swedish, Norwegian, Danish, French, Spanish, Italian, Portuguese, Russian,
# Ukrainian, Polish, Czech, Turkish, Greek, Arabic, Hindi, Indonesian, Armenian, Hebrew, Bengali,
# Tamil, Telugu.
_WORDS = {
    WHO: (
        "who whom whose who's wer wem wen wessen vem hvem qui quién quiénes chi quem кто кого кому"
        " хто kto kdo ποιος من कौन किसने siapa"
        " ով מי কে কারা யார் ఎవరు"
    ),
    WHEN: (
        "when wann wanneer när hvornår quand cuándo quando когда коли kiedy kdy πότε متى कब kapan"
        " երբ מתי কখন কবে எப்போது எப்பொழுது ఎప్పుడు"
    ),
    WHERE: (
        "where where's wo woher wohin waar où dónde dove dov'è onde где куда откуда gdzie kde"
        " nerede πού أين कहाँ कहां"
        " որտեղ ուր איפה היכן לאן কোথায় কোথায় எங்கே எங்கு ఎక్కడ"
    ),
    WHY: (
        "why warum wieso weshalb waarom varför hvorfor pourquoi perché почему зачем чому dlaczego"
        " proč neden niçin γιατί لماذا क्यों mengapa kenapa"
        " ինչու למה מדוע কেন ஏன் ఎందుకు"
    ),
    HOW: (
        "how wie hoe hur hvordan hvor comment cómo come como как як jak nasıl πώς كيف कैसे bagaimana"
        " ինչպես איך כיצד কীভাবে কেমন எப்படி ఎలా"
    ),
    MEASURE: (
        "wieviel wieviele hoeveel combien cuánto cuánta cuántos cuántas quanto quanta quanti quante"
        " quantos quantas сколько скільки ile kolik kaç πόσο πόσα πόσοι πόσες كم कितने कितना कितनी"
        " berapa"
        " քանի որքան כמה কত কতজন কয়টি எத்தனை எவ்வளவு ఎన్ని ఎంత"
    ),
    WHAT: (
        "what's was wat vad hva hvad qu'est-ce est-ce que qué cosa che что що чем τι ما ماذا क्या"
        " ինչ מה কী কি என்ன ఏమిటి ఏం"
    ),
    WHICH: (
        "which what welche welcher welches welchem welchen welke welk vilken vilket vilka hvilken"
        " hvilket hvilke quel quelle quels quelles cuál cuáles quale quali qual quais какой какая"
        " какое какие каком який яка яке який która które który která hangi ποια ποιο أي"
        " որը איזה איזו কোন কোনটি எது எந்த ఏది ఏ"
    ),
}
ASKS_FOR = {word: about for about, words in _WORDS.items() for word in words.split()}
# Question words that open statements just as often.
_WEAK = (
    "was wo wie wen qui que où come che como quanto quando как чем wanneer waar wat hva hvad vad"
    " när hur hoe hvor ile jak kde من ما מי מה כמה למה ուր որը ինչ"
)
WEAK = frozenset(_WEAK.split())
# Words that open only questions, in languages without a pattern for the words that follow.
_ONLY_ASK = (
    "hoeveel waarom varför hvorfor hvem vem hvordan хто скільки чому kto kdo dlaczego kolik proč"
    " neden niçin nasıl kaç ποιος πότε πού γιατί πώς πόσο πόσα πόσοι πόσες كم متى أين لماذا كيف"
    " कौन किसने कब कहाँ कहां क्यों कैसे कितने कितना कितनी siapa mengapa kenapa bagaimana berapa"
)
ONLY_ASK = frozenset(_ONLY_ASK.split())
# After "how", these words ask for a measure.
MEASURED = "many|much|long|old|far|tall|big|large|high|deep|often|fast|hot|wide|heavy|late"
_MEASURED = frozenset(
    (
        f"{MEASURED.replace('|', ' ')} viel viele alt hoch lang lange groß weit oft många mycket"
        " gammal lång mange mye meget gammel"
    ).split()
)
_IS = frozenset(["is", "are", "was", "were", "does", "do", "did", "ist", "sind", "bedeutet"])
# Verbs that can open a question, as alternatives of a pattern.
BE = "is|are|was|were|am|isn't|aren't|wasn't|weren't"
DO = "do|does|did|don't|doesn't|didn't"
MODAL = "can|could|will|would|has|have|had|should|shall|may|might|must|can't|won't|hasn't"
AUX = f"{BE}|{DO}|{MODAL}"
VERBS = frozenset(f"{BE}|do|does|did|has|have|had|can|could|will|would|should".split("|"))
PREPOSITION = (
    "in|on|at|for|from|to|of|by|with|under|during|since|until|about|into|through|after|before"
    "|auf|aus|bei|mit|von|zu|seit|dans|de|à|avec|pour|par|en|con|por|para|desde|di|da|per|su|em"
    "|a|с|в|на|из|к|о"
)
PREPOSITIONS = frozenset(PREPOSITION.split("|"))
# Patterns for any position in a question, for scripts without spaces and Korean: Chinese,
# Japanese, Korean, Thai.
_UNSPACED = tuple(
    (about, re.compile(pattern))
    for about, pattern in (
        (WHO, "谁|誰|だれ|누가|누구|ใคร"),
        (WHEN, "何时|何時|いつ|언제|เมื่อไ"),
        (WHERE, "哪里|哪儿|哪裡|何地|どこ|어디|ที่ไหน"),
        (WHY, "为什么|為什麼|なぜ|왜\\s|ทำไม"),
        (MEASURE, "多少|几[个年月天岁次]|いくつ|いくら|얼마|몇|เท่าไ|กี่"),
        (HOW, "怎么|怎麼|如何|どう|어떻게|อย่างไร"),
        (WHICH, "哪|どの|どれ|어느|어떤"),
        (WHAT, "什么|什麼|何[がをの年人]|무엇|อะไร"),
        (YES_NO, "吗|嗎|ですか|ますか|ましたか|でしょうか|ไหม"),
    )
)
UNSPACED = re.compile("|".join(pattern.pattern for _, pattern in _UNSPACED))
_LONGEST = 60  # words of a question that are read
_EDGES = "\"'“”‘’«»„¿¡()[]*_,.:;?؟،।։？"
_IN_WORDS = {ord("’"): "'", 0x055E: None}  # the question mark of Armenian stands in a word


def words_of(question: str, n: int) -> list[str]:
    """Return the first words of a question, in lower case, without surrounding punctuation."""
    return [
        word.strip(_EDGES).translate(_IN_WORDS).lower() for word in question.split(maxsplit=n)[:n]
    ]


def about_of(question: str) -> int:
    """Return the kind of answer that a question asks for by its words; an index into ABOUT."""
    words = words_of(question, _LONGEST)
    if words and words[0] in VERBS:
        return YES_NO
    for place, word in enumerate(words):
        if word in ASKS_FOR and (word not in WEAK or place == 0 or words[0] in PREPOSITIONS):
            behind = "".join(words[place + 1 : place + 2])
            if ASKS_FOR[word] == HOW and behind in _MEASURED:
                return MEASURE
            return WHAT if ASKS_FOR[word] == WHICH and behind in _IS else ASKS_FOR[word]
    if not question.isascii():
        for about, pattern in _UNSPACED:
            if pattern.search(question):
                return about
    return ANYTHING


def asks_first(sentence: str) -> bool:
    """Return whether a sentence begins with a question word."""
    first, second, *_ = [*words_of(sentence, 2), "", ""]
    return first in ASKS_FOR or (first in PREPOSITIONS and second in ASKS_FOR)
