"""What a user's own runs say of prices: factors on their causes, and what to run next.

`sources`: files of runs; `observations`: runs beside their prices, as `nest.learned/1` keeps them;
`posterior`: what they determine, with its doubt; `learned`: the document, and a stack that has
learned; `following`: the next run.
"""

from nest.measured.learning.following import Next, following
from nest.measured.learning.learned import Learned, load_learned
from nest.measured.learning.observations import Observation, observe, observed
from nest.measured.learning.posterior import Forecast, Posterior
from nest.measured.learning.sources import learn, unlearned

__all__ = ["Forecast", "Learned", "Next", "Observation", "Posterior", "following", "learn",
           "load_learned", "observe", "observed", "unlearned"]
