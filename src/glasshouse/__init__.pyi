from glasshouse.api.attack import attack as attack
from glasshouse.api.attack import view as view
from glasshouse.api.audit import audit as audit
from glasshouse.api.check import check as check
from glasshouse.api.defenses import defenses as defenses
from glasshouse.api.explain import explain as explain
from glasshouse.api.guard import guard as guard
from glasshouse.api.run import Run as Run
from glasshouse.api.run import load as load
from glasshouse.api.scenario import scenario as scenario
from glasshouse.api.terms import terms as terms
from glasshouse.errors import GlasshouseError as GlasshouseError
from glasshouse.models.adapt import adapt as adapt
from glasshouse.scenario.spec import Scenario as Scenario

__version__: str
PUBLIC: dict[str, str]

def make_callable(package: str) -> None: ...
