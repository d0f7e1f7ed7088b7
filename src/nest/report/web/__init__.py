"""A report that people look at: one HTML file with all figures, which sends no request.

`document` puts that of a plan together from one module per section: `answer` (what to run, how
fast, how sure), `timeline` (the simulated step), `places` (which device does what), `traffic`
(bytes over links) and `options` (other plans, more resources). `compared` is the document of two
plans, `planners` that of a comparison of planners, `validated` that of measured runs, `diagnosed`
that of a slow run. `pages` puts a document into the page of the folder
`page`: plain HTML, CSS and JavaScript. `plots` draws the same figures as pictures.
"""
