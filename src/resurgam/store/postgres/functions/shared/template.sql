-- Templates: JSON whose caller could not know every value. One is a text, or a list of pieces with the names of holes between
-- them. Values are numbers or texts.

-- Return the text of a template.
CREATE FUNCTION {schema}.template_fill_{code}(template jsonb, holes jsonb) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE jsonb_typeof(template)
        WHEN 'string' THEN template #>> '{}'
        ELSE (
            SELECT string_agg(CASE WHEN number % 2 = 0 THEN (holes -> piece)::text ELSE piece END, '' ORDER BY number)
            FROM jsonb_array_elements_text(template) WITH ORDINALITY AS pieces (piece, number)
        )
    END
$$;
